"""Plans and bundles as plain data, the adapter they are made for, and how a runner evaluates them."""
