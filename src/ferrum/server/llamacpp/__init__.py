"""llama.cpp's own form of completions, for editors that fill in the middle: bodies, replies and the route."""
