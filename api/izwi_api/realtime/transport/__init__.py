"""Live sessions over WebRTC."""
