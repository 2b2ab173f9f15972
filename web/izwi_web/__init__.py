"""The web page: plain files that the door serves. No build step, no import of another room."""
