package actions

// CheckAddress lets the tests try addresses that no test can connect to.
var CheckAddress = checkAddress
