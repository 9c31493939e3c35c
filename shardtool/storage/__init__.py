"""Places that hold data sets. Local folders; object stores behave alike."""
