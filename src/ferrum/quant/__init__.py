"""Weight formats, one file per format."""
