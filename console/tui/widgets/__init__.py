"""Widgets written for slow links."""
