"""Why a group lags or does not consume."""
