"""`rmqd diagnose`: the rules that find out why a group lags or does not consume."""
