//! Enums whose variants have names.

/// Defines enums whose variants have stable names, with `ALL`, `name` and `parse`.
#[macro_export]
macro_rules! named {
    ($($(#[$of:meta])* pub enum $Enum:ident { $($(#[$doc:meta])* $Variant:ident $name:literal,)+ })+) => {$(
        $(#[$of])*
        pub enum $Enum { $($(#[$doc])* $Variant),+ }

        impl $Enum {
            /// Every variant, in the order of declaration.
            pub const ALL: [$Enum; [$($name),+].len()] = [$($Enum::$Variant),+];

            /// Returns the stable name, as in columns, JSON and settings.
            pub fn name(self) -> &'static str {
                match self { $($Enum::$Variant => $name),+ }
            }

            /// Returns the variant with this name; `None` if there is none.
            pub fn parse(text: &str) -> Option<$Enum> {
                Self::ALL.into_iter().find(|one| one.name() == text)
            }
        }
    )+};
}
