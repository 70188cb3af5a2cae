"""What is answered to each request, one module per subject."""
