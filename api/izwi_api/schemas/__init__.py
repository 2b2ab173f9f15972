"""Bodies of requests and answers, as the wire has them."""
