"""The web page: plain files that the server serves. No build step, no import of another room."""
