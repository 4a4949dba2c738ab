"""From a recording to a program: the compiler's passes."""
