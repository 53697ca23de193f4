// Loaded by node before a script step, whose source is an ES module. Gives it the names of CommonJS as globals,
// resolving from the working directory; a declaration of the same name in the source hides them.
import { createRequire, Module, syncBuiltinESMExports } from "node:module";
import threads from "node:worker_threads";

if (Number.parseInt(process.versions.node, 10) < 20) {
  console.error(`a node script needs Node 20 or later; this is ${process.version} (${process.execPath})`);
  process.exit(1);
}

const directory = process.cwd();
const file = directory + "/[script]";
const module = new Module(file);
module.filename = file;
const require = createRequire(file);
require.main = module;
const names = { require, module, exports: module.exports, __filename: file, __dirname: directory };
for (const [name, value] of Object.entries(names)) {
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
}

// The options that make node run the source would break what the script starts with them: fork() copies
// process.execArgv, and a Worker of a file refuses --input-type.
process.execArgv = [];
threads.Worker = class Worker extends threads.Worker {
  constructor(filename, options) {
    super(filename, { execArgv: [], ...options });
  }
};
syncBuiltinESMExports();
