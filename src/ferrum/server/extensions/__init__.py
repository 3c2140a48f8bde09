"""Routes beyond any dialect: records and replay, the memory plan, the web page."""
