"""Wire format: values, events, problems and requests."""
