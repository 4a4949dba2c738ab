"""What `ag.autograd.capture` is made of: arguments, one recorded call, its trace, and the program made of it."""
