"""Images with texts that describe them."""
