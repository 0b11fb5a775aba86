"""What one gateway carries: workers on simulated machines, which have networks, host names and folders of their own."""
