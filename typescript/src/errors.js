// The errors of the package: one class for each fact, all of them `OutlastError`. `code` is the same in every face of
// Outlast (HTTP, the command line, Python); `hint` says what to do.

/** Base of all errors. `message` is the fact, `hint` what to do about it. */
export class OutlastError extends Error {
  /**
   * @param {string} message
   * @param {{hint?: string | null, code?: string, cause?: unknown}} [about]
   */
  constructor(message, about = {}) {
    super(about.hint ? `${message}\nhint: ${about.hint}` : message, about.cause === undefined ? undefined : { cause: about.cause });
    this.name = new.target.name;
    /** @type {string} The stable code. */
    this.code = about.code ?? 'error';
    /** @type {string | undefined} What to do about it. */
    this.hint = about.hint ?? undefined;
  }
}

/** No run has the given id. */
export class UnknownRun extends OutlastError {}
/** The run has no snapshot of this name, or no such attempt. */
export class UnknownSnapshot extends OutlastError {}
/** Another live process drives the run; the message says which. */
export class RunHeld extends OutlastError {}
/** The run is completed, failed or cancelled: nothing more can be opened in it. */
export class RunEnded extends OutlastError {}
/** A new step was asked for in a completed run, which only replays. */
export class RunCompleted extends RunEnded {}
/** The run is halted: by a limit, or by what its rules refuse. `code` says which. */
export class RunHalted extends OutlastError {}
/** A limit of the run's budget refused something; `code` names it. */
export class BudgetExceeded extends RunHalted {}
/** The run has another limit than the one asked for; nothing was changed. */
export class BudgetChanged extends OutlastError {}
/** A limit of a budget is negative, or no number. */
export class BadLimit extends OutlastError {}
/** Another process drives the run now, or may do so: this one opens nothing more in it. */
export class LeaseLost extends OutlastError {}
/** A person asked the run to stop. */
export class StopRequested extends OutlastError {}
/** A run was used after it was left. */
export class RunNotOpen extends OutlastError {}
/** The code was called outside of a run. */
export class NoRun extends OutlastError {}
/** The state has another version than the one expected; nothing was written. */
export class Conflict extends OutlastError {}
/** A namespace `run:<id>` is written by its own run only. */
export class ReadOnlyNamespace extends OutlastError {}
/** The server cannot be reached, or went away. */
export class NoServer extends OutlastError {}
/** The entry is closed already. */
export class AlreadySettled extends OutlastError {}
/** Another process began the step anew: its result counts. */
export class AlreadyTaken extends OutlastError {}
/** The value cannot be recorded, or would come back as another. Nothing was written. */
export class NotSerializable extends OutlastError {}
/** Two steps of one life have the same key, or two items of a batch. */
export class DuplicateKey extends OutlastError {}
/** An argument or an item has no key, since it cannot be written without leaving something out. */
export class Unkeyable extends OutlastError {}
/** The program did a step that earlier lives did not do, while recorded steps of its name are left over. */
export class StepDiverged extends OutlastError {}
/** A step that may happen once was begun before, and its outcome is not known: it is not run again. */
export class StepInDoubt extends OutlastError {}
/** The step failed in an earlier life, or a person said that it failed. */
export class StepFailed extends OutlastError {}
/** A tool threw this in an earlier life. */
export class ToolFailed extends OutlastError {}
/** A try took longer than its timeout. */
export class StepTimeout extends OutlastError {}
/** The item failed in an earlier life of the job. */
export class ItemFailed extends OutlastError {}
/** A tool call that was asked about may not be made: `status` is `denied`, `timeout` or `blocked`. */
export class ApprovalDenied extends OutlastError {
  /**
   * @param {string} message
   * @param {{hint?: string, code?: string, status: string, reason?: string, by?: string, id?: string}} about
   */
  constructor(message, about) {
    super(message, about);
    this.status = about.status;
    this.reason = about.reason;
    this.by = about.by;
    this.id = about.id;
  }
}
/** The store cannot be opened, read or written; `code` says which. */
export class StoreError extends OutlastError {}

/** To be thrown by an item's function: the item is skipped, without a result. */
export class Skip extends Error {
  /** @param {string} reason */
  constructor(reason) {
    super(reason);
    this.name = 'Skip';
  }
}

/** @type {Record<string, new (message: string, about?: any) => OutlastError>} */
const BY_CODE = {
  unknown_run: UnknownRun,
  unknown_snapshot: UnknownSnapshot,
  run_held: RunHeld,
  run_ended: RunEnded,
  cancelled: RunEnded,
  run_completed: RunCompleted,
  run_halted: RunHalted,
  price_unknown: RunHalted,
  diverged: RunHalted,
  budget_changed: BudgetChanged,
  bad_limit: BadLimit,
  lease_lost: LeaseLost,
  label_ended: LeaseLost,
  instance_dead: LeaseLost,
  not_running: LeaseLost,
  unknown_session: LeaseLost,
  stop_requested: StopRequested,
  conflict: Conflict,
  read_only_namespace: ReadOnlyNamespace,
  already_settled: AlreadySettled,
  already_taken: AlreadyTaken,
};

/**
 * Makes the error for a code of the engine.
 * @param {string} code
 * @param {string} message
 * @param {string | null} [hint]
 * @returns {OutlastError}
 */
export function errorOf(code, message, hint) {
  let cls = BY_CODE[code];
  if (!cls && code.endsWith('_budget_exceeded')) cls = BudgetExceeded;
  if (!cls && (code.startsWith('store_') || code === 'commit_unknown')) cls = StoreError;
  return new (cls ?? OutlastError)(message, { code, hint });
}
