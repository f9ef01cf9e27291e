"""What goes over the wire: strict on the way in, complete on the way out."""
