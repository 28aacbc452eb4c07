"""The commands. Only this package knows absl."""
