"""Choose how a device makes products of matrices: tiles by table or measurement, or matrix units."""
