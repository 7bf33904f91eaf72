"""While training: why a running job stands still, seen from outside."""
