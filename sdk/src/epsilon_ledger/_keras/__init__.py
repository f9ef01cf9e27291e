"""Private parts of the Keras adapter."""
