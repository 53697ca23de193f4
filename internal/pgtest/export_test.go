package pgtest

// Newest lets the tests offer directories of their own.
var Newest = newest
