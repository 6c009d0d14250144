//! Errors of commands, each with a stable code, a hint and an exit code.

/// Defines errors as rows: text, fields, stable code and exit code, and the hint that is printed below the error: what to do
/// about it. A row without a hint has none. Of an error that another one wraps a row tells by the name behind `as`. The derive
/// stands with the rows: its names and theirs have to be of one place.
macro_rules! error_rows {
    ($(#[$about:meta])* pub enum $Error:ident {$(
        $(#[$text:meta])*
        $Variant:ident
        $({ $($(#[$doc:meta])* $field:ident: $Kind:ty),+ $(,)? })?
        $(($(#[$from:meta])? $Inner:ty as $inner:ident))?
        => $fact:expr $(, $hint:expr)?;
    )+}) => {
        $(#[$about])*
        pub enum $Error {$(
            $(#[$text])*
            $Variant $({ $($(#[$doc])* $field: $Kind),+ })? $(($(#[$from])? $Inner))?,
        )+}

        #[allow(unused_variables)]
        impl $Error {
            /// Returns the stable code, by which programs tell errors apart, and the exit code. See `exit_code`.
            pub fn fact(&self) -> (&'static str, u8) {
                match self {$( $Error::$Variant $({ $($field),+ })? $(($inner))? => $fact, )+}
            }

            /// Returns the hint that is printed below the error: what to do about it; `None` if there is none.
            pub fn hint(&self) -> Option<String> {
                match self {$( $Error::$Variant $({ $($field),+ })? $(($inner))? => error_rows!(hint $($hint)?), )+}
            }
        }
    };
    (hint) => { None };
    (hint $hint:expr) => { $crate::program::error::Hint::text($hint) };
}

mod bundle;
mod command;
mod files;
mod input;
mod inside;
mod machine;
mod run;

use std::io;

use outlast_core::{
    engine,
    reads::runs,
    store::{self, RunView, Store},
    words::{Class, Micros},
};
use serde::Serialize;
use serde_json::json;

pub use self::{
    bundle::BundleError,
    command::CommandError,
    files::FilesError,
    input::InputError,
    inside::{InsideError, TaskRefused},
    machine::MachineError,
    run::RunError,
};
use crate::{
    program::{
        exit_code::{self, OK, REFUSED, UNAVAILABLE, USAGE},
        jsonl, say,
    },
    render::{
        amount::usd,
        look::{Look, Unwritten},
        short,
        table::{Cell, Table},
        text::clean,
        time,
    },
    settings::{file, keys, prices, store_address},
};

/// Run that an ambiguous name may mean, as an error lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    pub run: String,
    pub name: Option<String>,
    pub status: &'static str,
    pub age_ms: i64,
    pub spent_nano_usd: i64,
}

impl Candidate {
    pub fn of(view: &RunView, now: Micros) -> Candidate {
        Candidate {
            run: view.run.id.to_string(),
            name: view.run.job.as_ref().map(|job| job.name.clone()).or_else(|| view.spec.name.clone()),
            status: view.run.status.name(),
            age_ms: now.ms_since(view.run.created_at),
            spent_nano_usd: view.run.own.cost_nano_usd,
        }
    }
}

error_rows! {
    /// Error with which a command ends.
    #[derive(Debug, thiserror::Error)]
    pub enum CliError {
        /// Command line that clap refused; also `--help` and `--version`, which are printed and are no failure.
        #[error("{}", first_line(.0))]
        Line(Box<clap::Error> as e) => ("usage", if e.use_stderr() { USAGE } else { OK }), match e.kind() {
            clap::error::ErrorKind::UnknownArgument => {
                "see `outlast --help`; an agent's own flags come after its command"
            }
            _ => "see `outlast --help`",
        };
        #[error("{message}")]
        Usage { message: String, hint: Option<String> } => ("usage", USAGE), hint.clone();
        #[error(transparent)]
        Settings(#[from] file::Error as e) => ("bad_setting", USAGE), e.hint();
        #[error(transparent)]
        Place(#[from] store_address::Error as e) => ("bad_store_place", USAGE),
            "name another place with --store or OUTLAST_STORE";
        #[error(transparent)]
        Keys(#[from] keys::Error as e) => (e.code(), UNAVAILABLE), e.hint();
        #[error(transparent)]
        Store(#[from] store::Error as e) => (e.code(), exit_of_store(e)), e.hint();
        #[error("there is no store at {place} yet")]
        NoStore { place: String } => ("store_missing", UNAVAILABLE), match place.ends_with(".jsonl.outlast.db") {
            true => {
                "the record of a file of results is made by the script that writes it; of an older library's, which has none, \
                 `outlast inspect` reads the lines"
            }
            false => "`outlast run -- CMD` makes it; or name another place with --store or OUTLAST_STORE",
        };
        #[error("no run has the id or name {asked:?}")]
        NoSuchRun {
            asked: String,
            /// Word of a run that the one that was typed is similar to.
            like: Option<String>,
            /// Whether a job was asked for.
            is_job: bool,
        } => ("unknown_run", REFUSED), {
            let like = like.as_ref().map_or_else(String::new, |like| format!("did you mean {like}? "));
            let of_file = match *is_job || jsonl::is_file(asked) {
                true => "; a job of resume_or_start is named by its .jsonl file",
                false => "",
            };
            format!("{like}list runs with `outlast ls`{of_file}")
        };
        #[error("no run was begun in {directory}")]
        NoRunHere { directory: String } => ("unknown_run", REFUSED), "name one; `outlast ls` lists them";
        #[error("{asked:?} may be any of {count} runs: {}", list(.candidates, *.count))]
        AmbiguousRun {
            asked: String,
            /// First few of the `count` runs that the name may mean.
            candidates: Vec<Candidate>,
            count: usize,
        } => ("ambiguous_run", REFUSED), "give its id, or more of it";
        // A reader that closes the pipe (`outlast journal … | head`) is no failure.
        #[error(transparent)]
        Output(#[from] Unwritten as e) => ("output", match e.0.kind() {
            io::ErrorKind::BrokenPipe => OK,
            _ => REFUSED,
        });
        #[error("the system refused an operation: {0}")]
        System(#[from] io::Error as e) => ("system", REFUSED);
        #[error(transparent)]
        Machine(#[from] MachineError as e) => e.fact(), e.hint();
        #[error(transparent)]
        Input(#[from] InputError as e) => e.fact(), e.hint();
        #[error(transparent)]
        Run(#[from] RunError as e) => e.fact(), e.hint();
        #[error(transparent)]
        Inside(#[from] InsideError as e) => e.fact(), e.hint();
        #[error(transparent)]
        Command(#[from] CommandError as e) => e.fact(), e.hint();
        #[error(transparent)]
        Files(#[from] FilesError as e) => e.fact(), e.hint();
        #[error(transparent)]
        Bundle(#[from] BundleError as e) => e.fact(), e.hint();
    }
}

/// Result of a command, or of a part of one.
pub type Result<T = (), E = CliError> = std::result::Result<T, E>;

/// Hint as a row gives it.
trait Hint {
    fn text(self) -> Option<String>;
}

impl Hint for Option<String> {
    fn text(self) -> Option<String> {
        self
    }
}

impl Hint for String {
    fn text(self) -> Option<String> {
        Some(self)
    }
}

impl Hint for &str {
    fn text(self) -> Option<String> {
        Some(self.to_owned())
    }
}

impl From<prices::Error> for CliError {
    fn from(e: prices::Error) -> Self {
        InputError::from(e).into()
    }
}

impl From<outlast_files::Error> for CliError {
    fn from(e: outlast_files::Error) -> Self {
        FilesError::from(e).into()
    }
}

impl From<clap::Error> for CliError {
    fn from(e: clap::Error) -> Self {
        CliError::Line(Box::new(e))
    }
}

impl CliError {
    /// Returns an error of the command line: exit 2.
    pub fn usage(message: impl Into<String>, hint: Option<&str>) -> CliError {
        CliError::Usage { message: message.into(), hint: hint.map(Into::into) }
    }

    /// Returns the error with the run that it is about called as people call it: by its name, else by its short id.
    #[must_use]
    pub fn called(mut self, store: &dyn Store) -> CliError {
        if let CliError::Store(store::Error::Engine(e)) = &mut self
            && let Some(id) = e.run_id_mut()
            && let Ok(Some(view)) = runs::with_id(store, id)
        {
            *id = short::called(&view);
        }
        self
    }

    /// Returns the error's stable code, by which programs tell errors apart.
    pub fn code(&self) -> &'static str {
        self.fact().0
    }

    /// Returns the exit code. See [`exit_code`].
    pub fn exit(&self) -> u8 {
        self.fact().1
    }

    /// Prints the error to stderr (help and version: to stdout) and returns its exit code.
    pub fn report(&self, as_json: bool) -> u8 {
        let exit = self.exit();
        match self {
            CliError::Line(e) if !as_json || exit == exit_code::OK => {
                // Nobody can be told when stderr is closed.
                let _ = e.print();
            }
            _ if exit == exit_code::OK => {}
            _ => say::line(&if as_json { self.json() } else { self.text() }),
        }
        exit
    }

    /// Returns the error and its hint as text for people.
    pub fn text(&self) -> String {
        let mut out = format!("error: {}", clean(&self.to_string()));
        if let CliError::AmbiguousRun { asked, candidates, count } = self {
            out = format!("error: {:?} may be any of {count} runs:\n{}", clean(asked), table(candidates));
            if *count > candidates.len() {
                out.push_str(&format!("  and {} more\n", count - candidates.len()));
            }
            out.pop();
        }
        if let Some(hint) = self.hint() {
            out.push_str(&format!("\nhint: {}", clean(&hint)));
        }
        out
    }

    /// Returns the error as one line of JSON for programs.
    pub fn json(&self) -> String {
        let mut error = json!({
            "code": self.code(),
            "message": self.to_string(),
            "hint": self.hint(),
            "exit_code": self.exit(),
        });
        if let CliError::AmbiguousRun { candidates, .. } = self {
            error["candidates"] = json!(candidates);
        }
        json!({ "error": error }).to_string()
    }
}

fn exit_of_store(e: &store::Error) -> u8 {
    match e {
        store::Error::Engine(engine::Error::RunHeld { .. }) => exit_code::HELD,
        store::Error::Engine(engine::Error::RunHalted { .. }) => exit_code::HALTED,
        store::Error::Engine(_) => exit_code::REFUSED,
        // What a server refuses is refused; one that is not reached is away.
        store::Error::Server { class, .. } => match class {
            Class::Unavailable | Class::NoCredential | Class::Unknown | Class::Internal => {
                exit_code::UNAVAILABLE
            }
            _ => exit_code::REFUSED,
        },
        _ => exit_code::UNAVAILABLE,
    }
}

/// Returns clap's message without its usage text.
fn first_line(e: &clap::Error) -> String {
    let text = e.render().to_string();
    let text = text.trim_start().strip_prefix("error: ").unwrap_or(text.trim_start());
    text.split("\n\n").next().unwrap_or_default().trim().to_owned()
}

/// Formats the candidates for people, a line for each, newest first.
fn table(candidates: &[Candidate]) -> String {
    let mut table = Table::new(["run", "name", "status", ">usd", ">age"]);
    for c in candidates {
        table.row(vec![
            Cell::whole(short::short_id(&c.run)),
            c.name.clone().unwrap_or_default().into(),
            c.status.into(),
            usd(c.spent_nano_usd).into(),
            time::age(c.age_ms).into(),
        ]);
    }
    table.render(Look::default(), 2)
}

fn list(candidates: &[Candidate], count: usize) -> String {
    let mut out = candidates.iter().map(|c| c.run.as_str()).collect::<Vec<_>>().join(", ");
    if count > candidates.len() {
        out.push_str(", …");
    }
    out
}

#[cfg(test)]
mod tests {
    use outlast_core::{envelope::Refusal, words::InstanceNo};
    use outlast_process::start_error;

    use super::*;

    #[test]
    fn an_error_tells_the_fact_the_hint_and_its_exit_code() {
        let check = |error: CliError, exit: u8, code: &str, text: &str| {
            assert_eq!((error.exit(), error.code(), error.text().as_str()), (exit, code, text));
            let json: serde_json::Value = serde_json::from_str(&error.json()).unwrap();
            assert_eq!(json["error"]["code"], code);
            assert_eq!(json["error"]["hint"].as_str().map(str::to_owned), error.hint());
        };
        check(
            CliError::NoSuchRun { asked: "x".into(), like: Some("xy".into()), is_job: false },
            1,
            "unknown_run",
            "error: no run has the id or name \"x\"\nhint: did you mean xy? list runs with `outlast ls`",
        );
        for (asked, is_job) in [("x", true), ("x.jsonl", false)] {
            let told = format!(
                "error: no run has the id or name \"{asked}\"\nhint: list runs with `outlast ls`; a job of resume_or_start is \
                 named by its .jsonl file"
            );
            check(CliError::NoSuchRun { asked: asked.into(), like: None, is_job }, 1, "unknown_run", &told);
        }
        check(
            store::Error::Engine(engine::Error::RunHeld {
                id: "r".into(),
                holder: "pid 4".into(),
                instance: InstanceNo(1),
            })
            .into(),
            77,
            "run_held",
            "error: run r is held by pid 4\nhint: see what it does with `outlast logs r` or `outlast attach r`, or end it with \
             `outlast stop r`; or begin a second one beside it: `outlast run --new --name OTHER -- CMD`",
        );
        check(
            store::Error::Open { place: "/x".into(), why: "no such directory".into() }.into(),
            69,
            "store_open",
            "error: cannot open the store /x: no such directory\n\
             hint: name another place with --store or OUTLAST_STORE",
        );
        let strays = |before| RunError::Strays { count: 2, whose: "an earlier attempt", before };
        check(
            strays(true).into(),
            69,
            "strays",
            "error: 2 processes of an earlier attempt cannot be ended; nothing was started",
        );
        check(strays(false).into(), 69, "strays", "error: 2 processes of an earlier attempt cannot be ended");
        check(
            RunError::KeysMissing { run: "r".into(), names: vec!["A".into(), "B".into()] }.into(),
            69,
            "key_missing",
            "error: run r was begun with A and B, and they are not there; nothing was started\n\
             hint: export A B, or put them into ~/.config/outlast/env (mode 0600)",
        );
    }

    /// A halted run is described in one way, whether a supervisor or the shell of a loop finds it so.
    #[test]
    fn a_halted_run_is_told_with_what_lets_it_go_on() {
        let halt = Refusal::plain("price_unknown", outlast_core::words::id::Micros(0));
        let error = CliError::from(RunError::Halted { run: "r".into(), halt: Some(Box::new(halt.clone())) });
        assert_eq!((error.exit(), error.code()), (75, "run_halted"));
        assert!(error.to_string().starts_with("run r is halted (price_unknown): "), "{error}");
        assert_eq!(error.hint(), Some(halt.hint("r")));
    }

    #[test]
    fn a_command_that_does_not_start_ends_as_a_shell_says_it() {
        let check = |e: start_error::Error, exit: u8| assert_eq!(RunError::NotStarted(e).fact().1, exit);
        check(start_error::Error::NotFound { program: "x".into(), looked_in: "PATH /bin".into() }, 127);
        check(start_error::Error::NotExecutable { path: "/x".into(), why: "it is a directory".into() }, 126);
        check(start_error::Error::NoCommand, 76);
    }

    #[test]
    fn a_reader_that_had_enough_is_no_failure() {
        let closed = CliError::Output(Unwritten(io::ErrorKind::BrokenPipe.into()));
        assert_eq!(closed.exit(), exit_code::OK);
        assert_eq!(CliError::Output(Unwritten(io::ErrorKind::StorageFull.into())).exit(), exit_code::REFUSED);
    }
}
