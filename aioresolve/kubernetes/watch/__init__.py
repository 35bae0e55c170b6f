"""How a watch keeps the state of a cluster: the cached objects, and the streams that change them."""
