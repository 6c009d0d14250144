fn main() -> std::process::ExitCode {
    outlast::main(std::env::args_os())
}
