"""Parts of a network. They call only `Operations`."""
