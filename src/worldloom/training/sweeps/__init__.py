"""Many runs: sweeps over settings, alone or shared among workers, and populations."""
