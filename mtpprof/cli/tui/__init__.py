"""The terminal dashboard. Only this package imports textual; what it shows is computed in modules that do not."""
