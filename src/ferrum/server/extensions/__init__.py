"""Routes beyond any dialect: sessions, records and replay, the memory plan, the web page."""
