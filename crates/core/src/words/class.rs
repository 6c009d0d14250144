//! Classes of errors, from which every face takes its own word: HTTP status, gRPC code, exit code.

/// Class of an error. Each error code has one, and each class one HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The request is not well formed.
    Invalid,
    NoCredential,
    Forbidden,
    NotFound,
    /// The state of what the request names does not allow it.
    Conflict,
    Exists,
    /// The named thing existed, and does not exist any more, or not in this form.
    Gone,
    TooLarge,
    TooMany,
    /// The request cannot be served now. The same request may succeed later.
    Unavailable,
    /// The outcome is unknown: the change may have been committed or not.
    Unknown,
    /// A defect of Outlast, or a store that is damaged or of another version.
    Internal,
}

impl Class {
    pub fn http(self) -> u16 {
        match self {
            Class::Invalid => 400,
            Class::NoCredential => 401,
            Class::Forbidden => 403,
            Class::NotFound => 404,
            Class::Conflict | Class::Exists => 409,
            Class::Gone => 410,
            Class::TooLarge => 413,
            Class::TooMany => 429,
            Class::Unavailable => 503,
            Class::Unknown | Class::Internal => 500,
        }
    }
}

/// Gives each variant of an error one row: its stable code, the same in HTTP, gRPC and Python, and its class. Variants
/// that wrap another error have its facts; they stand behind `through`.
///
/// A variant without a row does not compile. `CODES` has all rows.
#[macro_export]
macro_rules! error_facts {
    (
        $Error:ty { $($pattern:pat => $code:literal $Class:ident,)+ }
        $(through { $($wrapping:pat => $fact:expr,)+ })?
    ) => {
        impl $Error {
            /// Every code of this error's own, with its class.
            pub const CODES: &[(&str, $crate::words::class::Class)] =
                &[$(($code, $crate::words::class::Class::$Class)),+];

            /// Returns the stable code, the same in HTTP, gRPC and Python.
            pub fn code(&self) -> &'static str {
                self.fact().0
            }

            pub fn class(&self) -> $crate::words::class::Class {
                self.fact().1
            }

            /// Returns the code and the class.
            pub fn fact(&self) -> (&'static str, $crate::words::class::Class) {
                match self {
                    $($pattern => ($code, $crate::words::class::Class::$Class),)+
                    $($($wrapping => $fact,)+)?
                }
            }
        }
    };
}
