"""Parts of `ag.capture.step`: arguments, one recorded call, its guards and trace, and the program made of it."""
