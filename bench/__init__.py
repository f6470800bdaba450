"""Performance claims come from here, as ratios measured side by side."""
