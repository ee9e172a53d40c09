"""The machines and what runs on them: catalog, placement, reconciling."""
