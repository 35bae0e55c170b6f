"""Messages of the services that are asked for devices: `.proto` files and what protoc made of them."""
