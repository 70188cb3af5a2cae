"""Long runs with faults: `make campaign NAME=churn`. Their figures are kept in docs/campaigns.md."""
