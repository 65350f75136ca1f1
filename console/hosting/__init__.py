"""Starting, finding and watching an engine's process."""
