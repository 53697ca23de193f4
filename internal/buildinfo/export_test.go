package buildinfo

// Resolve lets the tests give what the linker and the toolchain recorded.
var Resolve = resolve
