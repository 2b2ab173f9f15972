"""What drawing the next entry needs on every backend: noise, earlier ids, grammars."""
