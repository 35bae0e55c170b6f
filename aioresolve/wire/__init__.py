"""Messages on the wire: `.proto` files and what protoc made of them."""
