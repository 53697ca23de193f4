// Calls Errand over MCP with the client of the TypeScript SDK, as agents do that are built on it, and prints what it
// saw as one JSON line. Arguments: the directory of its packages, then `stdio PROGRAM ARGUMENTS…` or `http URL`, for
// which TOKEN is the bearer token. The SDK checks each result against the schema that the server gave for it.
import { createRequire } from 'node:module';
import { join } from 'node:path';

const [packages, kind, ...target] = process.argv.slice(2);
const require = createRequire(join(packages, 'package.json'));
const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
const { StdioClientTransport } = require('@modelcontextprotocol/sdk/client/stdio.js');
const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js');

const transport = kind === 'stdio'
  ? new StdioClientTransport({ command: target[0], args: target.slice(1), env: process.env, stderr: 'inherit' })
  : new StreamableHTTPClientTransport(new URL(target[0]), {
      requestInit: { headers: { Authorization: `Bearer ${process.env.TOKEN}` } },
    });

const client = new Client({ name: 'errand-test', version: '1' });
await client.connect(transport);

async function call(name, args) {
  const result = await client.callTool({ name, arguments: args });
  if (JSON.stringify(JSON.parse(result.content[0].text)) !== JSON.stringify(result.structuredContent)) {
    throw new Error(`${name}: the text differs from the structured content`);
  }
  if (result.isError) {
    throw new Error(`${name}: ${result.content[0].text}`);
  }
  return result.structuredContent;
}

const { tools } = await client.listTools();
const automation = await call('create', {
  name: `from TypeScript over ${kind}`,
  workflow: {
    compiled: { version: 2, steps: [{ id: 'say', kind: 'command', command: 'cat', stdin: { $runInput: true } }] },
  },
});
const admitted = await call('run-now', { automation_id: automation.id, input: '<hello> & 😀', wait_ms: 30000 });
const run = await call('run', { run_id: admitted.id, wait_ms: 30000 });
const shown = await call('get', { automation_id: automation.id, include_runs: true });
const changed = await call('update', { automation_id: automation.id, expected_version: 1, description: 'changed' });
const conflict = await client.callTool({
  name: 'update', arguments: { automation_id: automation.id, expected_version: 1, description: 'again' },
});
const invalid = await client.callTool({ name: 'list', arguments: { limit: 'many' } });
const unknown = await client.callTool({ name: 'destroy', arguments: {} }).then((r) => r, (error) => ({ code: error.code }));
const resource = await client.readResource({ uri: `errand://runs/${run.id}` });
const templates = await client.listResourceTemplates();
const listed = await client.listResources();
await call('list', {});
await call('runs', { automation_id: automation.id });
await call('machines', {});
const deleted = await call('delete', { automation_id: automation.id });
const gone = await client.callTool({ name: 'get', arguments: { automation_id: automation.id } });
const server = client.getServerVersion();
const instructions = client.getInstructions();
await client.close();

console.log(JSON.stringify({
  tools: tools.map((tool) => tool.name),
  status: run.status,
  stdout: run.steps[0].output.stdout,
  runs: shown.runs.length,
  version: changed.version,
  deleted: deleted.deleted,
  errors: [conflict, invalid, gone].map((r) => r.isError && `${r.structuredContent.error.code} ${r.structuredContent.error.status}`),
  unknown: unknown.code ?? unknown.isError,
  resource: JSON.parse(resource.contents[0].text).status,
  templates: templates.resourceTemplates.map((t) => t.uriTemplate),
  listed: listed.resources.map((r) => r.uri).includes(`errand://automations/${automation.id}`),
  server: server.name,
  instructions: instructions.length > 0,
}));
