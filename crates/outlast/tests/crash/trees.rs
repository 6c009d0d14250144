//! No process of an old attempt lives when the next one begins, whoever was killed, and when.

use crate::{
    agents::script,
    bed::{Bed, Dice, each},
};

/// At its start it looks for anybody who should not be there; then it starts a family, and somebody is killed.
///
/// The argument states for each life: who is killed (`self`, `parent`), whether it waits until the family is up, and
/// the family, that is which of its members leave the session, clear the environment or ignore SIGTERM, and at which
/// depth.
const FAMILY: &str = r#"
import json, os, signal, sys, time

def start_time(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return None if fields[0] in "ZX" else fields[19]
    except (FileNotFoundError, ProcessLookupError):
        return None

def relatives():
    with open("../family", "a+") as family:
        family.seek(0)
        return [line.split() for line in family if line.endswith("\n")]

violations = [f"{pid} of the family" for pid, began in relatives() if start_time(pid) == began]
mark = b"OUTLAST_MARK=" + os.environ["OUTLAST_MARK"].encode()
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            marked = mark in environ.read().split(b"\0")
    except OSError:
        continue
    if marked and int(pid) != os.getpid() and start_time(pid):
        violations.append(f"{pid} is marked")
if violations:
    open("../violations", "a").write(f"life {len(os.listdir('../lives'))}: {violations}\n")

os.close(os.open(f"../lives/{os.environ['OUTLAST_ATTEMPT']}", os.O_CREAT))
lives = json.loads(sys.argv[1])
life = len(os.listdir("../lives")) - 1
if life >= len(lives):
    sys.exit(0)
who, waits, family = lives[life]
before = len(relatives())
for member in family:
    if os.fork():
        continue
    for _ in range(member["depth"]):
        if os.fork():
            os._exit(0)
    if member["setsid"]:
        try: os.setsid()
        except PermissionError: pass
    if member["deaf"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open("../family", "ab", buffering=0) as out:
        out.write(f"{os.getpid()} {start_time(os.getpid())}\n".encode())
    os.execve("/bin/sleep", ["sleep", "120"], {} if member["clear"] else os.environ)
while waits and len(relatives()) < before + len(family):
    time.sleep(0.005)
os.kill(os.getpid() if who == "self" else os.getppid(), signal.SIGKILL)
signal.pause()
"#;

#[test]
fn nobody_of_an_old_attempt_lives_when_the_next_one_begins_over_eighty_kills() {
    let mut dice = Dice::new();
    // Twenty runs with four kills each.
    let runs: Vec<Vec<serde_json::Value>> = (0..20)
        .map(|_| {
            let killed = |dice: &mut Dice| if dice.below(2) == 0 { "self" } else { "parent" };
            (0..4)
                .map(|_| {
                    let who = killed(&mut dice);
                    let family: Vec<_> = (0..1 + dice.below(4))
                        .map(|_| {
                            serde_json::json!({
                                "depth": dice.below(3),
                                "setsid": dice.below(2) == 0,
                                "clear": dice.below(3) == 0,
                                "deaf": dice.below(12) == 0,
                            })
                        })
                        .collect();
                    let clears = family.iter().any(|m| m["clear"] == true);
                    serde_json::json!([who, clears || dice.below(3) > 0, family])
                })
                .collect()
        })
        .collect();
    each(runs, |lives| {
        let bed = Bed::without_mock();
        std::fs::create_dir(bed.path("lives")).unwrap();
        let plan = serde_json::to_string(&lives).unwrap();
        let mut done = bed.run(script(&bed, &["--run", "r"], FAMILY, &[&plan]));
        while done.code == 137 {
            done = bed.does(&["resume", "r"]);
        }
        done.code(0);
        assert_eq!(bed.text("violations"), "", "{plan}");
        assert_eq!(std::fs::read_dir(bed.path("lives")).unwrap().count(), 5, "{plan}");
        // Also after the last one.
        let left: Vec<u32> = bed
            .text("family")
            .lines()
            .filter_map(|line| {
                let (pid, began) = line.split_once(' ')?;
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
                let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
                (fields[19] == began && fields[0] != "Z").then(|| pid.parse().unwrap())
            })
            .collect();
        assert_eq!(left, Vec::<u32>::new(), "{plan}");
    });
}
