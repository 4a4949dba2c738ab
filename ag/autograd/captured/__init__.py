"""Parts of `ag.autograd.capture`: arguments, one recorded call, its guards and trace, and the program made of it."""
