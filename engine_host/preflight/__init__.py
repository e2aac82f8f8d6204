"""What can be known of a profile before anything is touched: the checks of `engine-host check` and of every switch."""
