"""Routes that are no chats: one file for each task."""
