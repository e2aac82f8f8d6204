"""The Textual application: screens, widgets, keys."""
