"""Images: decoded pixels, and what a family of models makes of them: tokens in a prompt, patches for its tower."""
