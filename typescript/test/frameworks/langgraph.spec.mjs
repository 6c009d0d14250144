// LangGraph's own suite for checkpointers. (Its command does not find its own schema in this version; its library does.)
import { specTest } from '@langchain/langgraph-checkpoint-validation';
import { connect } from 'outlast';
import { OutlastSaver } from 'outlast/langgraph';

const connection = connect();
let made = 0;

specTest({
  checkpointerName: 'OutlastSaver',
  createCheckpointer: () => new OutlastSaver({ connection, namespace: `suite-${made++}` }),
});
